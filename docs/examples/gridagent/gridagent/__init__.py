"""An agent of its own for sfactory; pyproject.toml gives its parts their short names."""
