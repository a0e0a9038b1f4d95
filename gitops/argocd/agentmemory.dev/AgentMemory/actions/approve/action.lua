-- Approves the plan that waits. The annotation is not in Git, so self-heal leaves it.
-- What the annotation has to say for the plan that waits, as `agentmemory approve` finds it; nil where none waits.
local APPROVABLE = {AwaitingApproval = true, RebuildCancelled = true, RolledBack = true}

local function text(value)
  return type(value) == "string" and value ~= "" and value or nil
end

local function waiting()
  local status = obj.status
  if type(status) ~= "table" or status.observedGeneration ~= obj.metadata.generation then
    return nil
  end
  if type(status.rebuild) == "table" and status.rebuild.state == "Held" then
    return text(status.rebuild.digest) and status.rebuild.digest .. "-recall"
  end
  if type(status.conditions) ~= "table" or type(status.plan) ~= "table" then
    return nil
  end
  for _, one in ipairs(status.conditions) do
    if type(one) == "table" and one.type == "InSync" and text(one.reason) and APPROVABLE[one.reason] then
      return text(status.plan.digest)
    end
  end
  return nil
end

local digest = waiting()
if digest == nil then
  error("no plan is waiting for approval: see the condition InSync, or wait until the operator has seen the last edit")
end
local annotations = obj.metadata.annotations or {}
annotations["agentmemory.dev/approve-plan"] = digest
-- What stopped the plan or took it back has to go.
annotations["agentmemory.dev/cancel-rebuild"] = nil
annotations["agentmemory.dev/rollback-rebuild"] = nil
obj.metadata.annotations = annotations
return obj
