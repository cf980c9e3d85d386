"""API-Bank (Li et al. 2023): the next call in a dialogue."""
