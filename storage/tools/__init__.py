"""Tools for a log directory that no broker uses at the moment: dump, verify, repair."""
