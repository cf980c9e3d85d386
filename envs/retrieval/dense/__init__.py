"""Dense search: encoders, vectors on disk and FAISS indexes."""
