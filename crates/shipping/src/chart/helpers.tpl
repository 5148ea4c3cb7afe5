{{/* The operator's image. The chart of a release knows its digest; another tag is another image. */}}
{{- define "vdo.image" -}}
{{- $released := index (default dict .Chart.Annotations) "DIGEST" }}
{{- with .Values.image }}
{{- .registry }}/{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ with .digest | default (ternary "" $released (ne .tag "")) }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{/* Whether this release creates a namespace: not the namespace of the release, and none that exists without Helm. */}}
{{- define "vdo.ownsNamespace" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- if ne $root.Release.Namespace $name }}
{{- $existing := lookup "v1" "Namespace" "" $name }}
{{- $annotations := dig "metadata" "annotations" dict $existing | default dict }}
{{- $ours := and (eq (get $annotations "meta.helm.sh/release-name") $root.Release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") $root.Release.Namespace) }}
{{- if or (not $existing) $ours }}true{{ end }}
{{- end }}
{{- end }}

{{/* The tolerations of the operator's pods. On a node without a pod network, a pod on that network would wait. */}}
{{- define "vdo.tolerations" -}}
{{- $kept := list }}
{{- range .Values.tolerations }}
{{- if or $.Values.hostNetwork (not (has .key (list TAINTS))) }}
{{- $kept = append $kept . }}
{{- end }}
{{- end }}
{{- toYaml $kept }}
{{- end }}

{{/* Refuses an installation whose pods the cluster would reject. */}}
{{- define "vdo.checkPodSecurity" -}}
{{- if and .Values.hostNetwork (not (include "vdo.ownsNamespace" (list $ "vmware-system-vdo"))) }}
{{- $labels := dig "metadata" "labels" dict (lookup "v1" "Namespace" "" "vmware-system-vdo") | default dict }}
{{- $level := get $labels "pod-security.kubernetes.io/enforce" }}
{{- if has $level (list "baseline" "restricted") }}
{{- fail (printf "\n\nThe namespace vmware-system-vdo enforces the pod security level %s, which rejects pods on the host network.\nTo run the operator on the pod network, as vdoctl deploy does in such a namespace, set hostNetwork=false.\nTo use the host network, run: kubectl label namespace vmware-system-vdo pod-security.kubernetes.io/enforce=privileged --overwrite\n" $level) }}
{{- end }}
{{- end }}
{{- end }}
