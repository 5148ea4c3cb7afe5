{{/* The operator's image. */}}
{{- define "vdo.image" -}}
{{- with .Values.image }}{{ .registry }}/{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ with .digest }}@{{ . }}{{ end }}{{ end }}
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
