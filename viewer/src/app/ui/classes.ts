// Class attributes made of several names.

/** Joins the names that are set: `classes(style.token, chosen && style.chosen)`. */
export const classes = (...names: readonly (string | false | null | undefined)[]): string =>
  names.filter(Boolean).join(" ");
