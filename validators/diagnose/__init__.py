"""Which wiring were these weights trained for?"""
