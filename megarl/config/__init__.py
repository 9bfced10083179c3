"""The recipe: typed schema, composition, validation. Imports nothing of megarl but itself."""
