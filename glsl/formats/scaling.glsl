// The scales and minima of four columns for a group of rows. A weight is level * scale + minimum.
struct Scaling { vec4 scale; vec4 minimum; };
