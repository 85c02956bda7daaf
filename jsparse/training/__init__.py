"""From a table or a stream of rows to a tuned model."""
