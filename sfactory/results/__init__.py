"""Shows runs from their files: curves with seeds together, pictures for papers, a page for browsers."""
