"""Raw text to token ids: strings in, strings out."""
