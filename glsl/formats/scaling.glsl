// The scales and minima of four columns in a group of rows.
struct Scaling { vec4 scale; vec4 minimum; };
