"""Search QA: questions that are answered by searching a collection of passages."""
