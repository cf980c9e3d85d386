"""Full-text search: analysis, postings and BM25 in Lucene's order, and Lucene itself."""
