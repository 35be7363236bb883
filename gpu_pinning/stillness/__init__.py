"""The proof of stillness: a decode load, arms that run beside it, and honest statistics on its steps."""
