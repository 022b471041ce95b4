"""Terms: the dataflow graph of a variant, its op table, its normal forms."""
