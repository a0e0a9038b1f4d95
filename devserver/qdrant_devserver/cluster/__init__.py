"""The servers of one data folder: what they hold together, and the cluster that they simulate."""
