"""Files and tables to sources: reading, coordinates, times, quality, archives on disk."""
