"""An app whose jobs cannot be imported."""
