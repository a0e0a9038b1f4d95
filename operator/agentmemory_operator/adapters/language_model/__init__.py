"""Language models, behind `ports.models`."""
