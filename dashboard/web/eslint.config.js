import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

export default defineConfig(
  js.configs.recommended,
  tseslint.configs.strict,
  tseslint.configs.stylistic,
  {
    rules: {
      "eqeqeq": "error",
      "max-lines": ["error", 400],
      "max-lines-per-function": ["error", 70],
      "no-implicit-globals": "error",
      "no-var": "error",
      "prefer-const": "error",
      "@typescript-eslint/explicit-module-boundary-types": "error",
      "@typescript-eslint/no-empty-function": "off", // an optional hook of a view does nothing
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
    },
  },
  { ignores: ["node_modules"] },
);
