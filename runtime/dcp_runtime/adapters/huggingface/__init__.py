"""DCP in Hugging Face's models and trainer."""
