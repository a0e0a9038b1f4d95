"""One file per vendor: the only places that know a client library."""
