"""GenEnv: a simulator writes training tasks, and learns which fit the agent."""
