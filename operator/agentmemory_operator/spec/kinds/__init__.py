"""The four kinds: models of spec and status, the CRDs generated from them, and the checks of manifests."""
