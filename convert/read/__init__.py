"""What a folder holds: files, headers and values, read strictly."""
