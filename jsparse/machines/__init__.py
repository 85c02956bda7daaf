"""The learners of the papers as pure functions; each returns an expansion and diagnostics."""
