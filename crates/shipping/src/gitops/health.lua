local health = {status = "Progressing", message = "VDO has not reported about this object yet"}
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  health.message = "VDO has not seen the last change yet"
  return health
end
local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local ready, degraded = conditions["Ready"], conditions["Degraded"]
local progressing = conditions["Progressing"]
if degraded ~= nil and degraded.status == "True" then
  health.status = "Degraded"
  health.message = degraded.message
elseif ready ~= nil and ready.status == "True" then
  health.status = "Healthy"
  health.message = ready.message
elseif progressing ~= nil and progressing.status == "True" then
  health.message = progressing.message
elseif ready ~= nil and ready.status == "False" then
  health.status = "Degraded"
  health.message = ready.message
end
return health
