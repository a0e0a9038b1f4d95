-- Creates a MemorySnapshot of the agent, as `agentmemory snapshot create` does. It bears no label of the Application, which
-- therefore neither shows it as out of sync nor prunes it.
local os = require("os")

return {
  {
    operation = "create",
    resource = {
      apiVersion = obj.apiVersion,
      kind = "MemorySnapshot",
      metadata = {
        name = obj.metadata.name .. "-" .. os.date("!%Y%m%dt%H%M%Sz"),
        namespace = obj.metadata.namespace,
      },
      spec = {agentMemoryRef = {name = obj.metadata.name}},
    },
  },
}
