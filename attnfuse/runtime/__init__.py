"""What happens at a call: where built things are kept, and how a call finds its kernel."""
