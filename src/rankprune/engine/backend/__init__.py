"""From the graph to native code: layout, lowering, packing, kernel choice, tuning."""
