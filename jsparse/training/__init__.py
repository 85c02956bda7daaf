"""Training: the steps that turn a table or a stream of rows into a tuned model."""
