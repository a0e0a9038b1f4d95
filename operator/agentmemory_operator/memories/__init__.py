"""What is stored on a point, and every way to write, read, link, compare, export and import it."""
