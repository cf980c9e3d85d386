"""ScienceWorld: elementary science in ten rooms, simulated in Scala by the package ``scienceworld``."""
