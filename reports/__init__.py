"""Reports: pages about runs, live or as files, checks of the setup, and environments to play yourself."""
