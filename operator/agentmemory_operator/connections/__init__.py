"""From a reference to something that answers: Qdrant servers, buckets, embedders, and the Secrets they need."""
