"""Questions of search QA: published data sets, question files, and the generated world."""
