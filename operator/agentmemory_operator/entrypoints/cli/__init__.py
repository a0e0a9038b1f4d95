"""The command line: one module a verb; a module named `*_view` says how it shows what it found."""
