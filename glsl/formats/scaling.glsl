// The scales and minima of four columns for a group of rows. A weight is level * scale + minimum, where `level` is the
// integer that is stored for it.
struct Scaling { vec4 scale; vec4 minimum; };
