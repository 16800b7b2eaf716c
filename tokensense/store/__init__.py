"""One zarr store a study."""
