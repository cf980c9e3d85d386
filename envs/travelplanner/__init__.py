"""TravelPlanner (Xie et al. 2024), sole planning: a plan of a trip from given information."""
