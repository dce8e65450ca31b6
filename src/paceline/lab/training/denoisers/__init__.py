"""Small denoisers of our own: models that fill masked places, trained on tasks."""
