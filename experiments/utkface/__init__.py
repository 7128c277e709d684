"""UTKFace: age, gender and ethnicity from a face."""
