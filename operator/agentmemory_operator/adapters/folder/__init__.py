"""A folder of manifests in the place of a cluster, for development."""
