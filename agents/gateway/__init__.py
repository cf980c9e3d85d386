"""The gateway: an agent program of a user's plays the episodes, and the policy answers it as a server of OpenAI's."""
