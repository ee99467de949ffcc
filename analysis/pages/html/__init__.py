"""Safe HTML and SVG: markup that escapes, whole pages that fetch nothing, tables and figures."""
