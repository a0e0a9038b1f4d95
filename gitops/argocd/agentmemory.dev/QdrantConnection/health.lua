-- The health of a QdrantConnection for Argo CD: docs/gitops.md has the table.

local function told(status, message)
  return {status = status, message = message}
end

local function words(condition)
  return condition.reason .. ": " .. condition.message
end

-- The conditions by type; nil where one is not as the operator writes it. A status can be forged.
local function conditions_of(status)
  local found, known = {}, {["True"] = true, ["False"] = true, ["Unknown"] = true}
  if type(status.conditions) ~= "table" then
    return nil
  end
  for _, one in ipairs(status.conditions) do
    if type(one) ~= "table" or type(one.type) ~= "string" or found[one.type] or not known[one.status]
        or type(one.reason) ~= "string" or type(one.message) ~= "string" then
      return nil
    end
    found[one.type] = one
  end
  return found
end

local FOREIGN = told("Degraded", "The status is not as the operator writes it: see who else may write statuses here")
local status = obj.status
if status == nil or type(obj.metadata) ~= "table" then
  return told("Progressing", "No operator has looked at it yet")
end
local conditions = type(status) == "table" and conditions_of(status)
if obj.metadata.deletionTimestamp ~= nil then
  local waits = conditions and (conditions.Stalled or conditions.Reconciling)
  return told("Progressing", "It is being deleted" .. (waits and "; " .. words(waits) or ""))
end
if not conditions then
  return FOREIGN
end
if type(status.observedGeneration) ~= "number" or status.observedGeneration ~= obj.metadata.generation then
  return told("Progressing", "The operator has not come to the last edit yet")
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

-- Whether a condition speaks of the object as it now is.
local function is_now(kind)
  return conditions[kind] ~= nil and conditions[kind].observedGeneration == obj.metadata.generation
end
-- Up to here the same for every kind.

if is("Stalled", "True") then
  return told("Degraded", words(conditions.Stalled))
elseif is("Reconciling", "True") then
  -- Not Degraded: that would end a sync, and the server is asked again.
  return told("Progressing", words(conditions.Reconciling))
elseif not is_now("Ready") then
  return FOREIGN
elseif not is("Ready", "True") then
  return told("Degraded", words(conditions.Ready))
end

local message = conditions.Ready.message
if is("NearCapacity", "True") then
  message = message .. "; " .. words(conditions.NearCapacity)
end
return told("Healthy", message)
