"""RoleAgent's environments in the terms of other libraries: Gymnasium's vectors, TRL, OpenEnv."""
