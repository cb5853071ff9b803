"""`starspec bench star`: one hub and N targets at StarSD's operating point."""
